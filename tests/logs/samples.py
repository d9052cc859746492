"""A short log in the form of each trainer. The numbers are made up; the forms are those of the programs."""

NANOGPT = """\
tokens per iteration will be: 16,384
found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)
Initializing a new model from scratch
number of parameters: 10.65M
num decayed parameter tensors: 26, with 10,740,096 parameters
num non-decayed parameter tensors: 13, with 4,992 parameters
using fused AdamW: True
compiling the model... (takes a ~minute)
step 0: train loss 4.2871, val loss 4.2820
iter 0: loss 4.2652, time 31521.10ms, mfu -100.00%
iter 10: loss 3.2412, time 36.11ms, mfu 10.32%
iter 20: loss 2.7893, time 36.20ms, mfu 10.31%
step 30: train loss 2.6511, val loss 2.6702
saving checkpoint to out-shakespeare-char
iter 30: loss 2.6690, time 4100.55ms, mfu 9.29%
"""

LLAMA2C = """\
tokens per iteration will be: 131,072
breaks down as: 4 grad accum steps * 2 processes * 64 batch size * 256 max seq len
step 0: train loss 10.3912, val loss 10.3904
0 | loss 10.3921 | lr 0.000000e+00 | 9050.12ms | mfu -100.00%
1 | loss 10.1133 | lr 5.000000e-07 | 812.55ms | mfu -100.00%
10 | loss 8.2210 | lr 5.000000e-06 | 810.13ms | mfu 21.44%
"""

NANOLENS = """\
# nanolens 0.1.0 run=runs/quick-1 loss=mean time=step_only updates_before_printed=1 mfu=unsmoothed peak_flops=210000000000 tokens_per_update=768
step 0: train loss 4.1751, val loss 4.1762
iter 0: loss 4.1790, time 55.12ms, mfu 60.10%
iter 1: loss 4.0120, time 54.02ms, mfu 61.30%
# chosen: dtype = float32, because there is no GPU
"""

NANOCHAT_2025 = """\
Vocab size: 65,536
num_layers: 20
Estimated FLOPs per token: 3.491758e+09
Total batch size 524,288 => gradient accumulation steps: 1
Step 00000 | Validation bpb: 3.3012
step 00000/21400 (0.00%) | loss: 11.090355 | lrm: 1.00 | dt: 24017.50ms | tok/sec: 21,829 | mfu: 0.96 | total time: 0.00m
step 00001/21400 (0.00%) | loss: 10.812345 | lrm: 1.00 | dt: 1010.22ms | tok/sec: 518,985 | mfu: 22.87 | total time: 0.00m
step 00250/21400 (1.17%) | loss: 5.312345 | lrm: 1.00 | dt: 1012.90ms | tok/sec: 517,611 | mfu: 22.81 | total time: 4.02m
Step 00250 | Validation bpb: 1.3312
"""

NANOCHAT_2026 = """\
GPU: NVIDIA H100 80GB HBM3 | Peak FLOPS (BF16): 9.89e+14
step 00011/05000 (0.22%) | loss: 7.112345 | lrm: 1.00 | dt: 510.22ms | tok/sec: 1,027,572 | bf16_mfu: 47.10 | epoch: 1 pq: 0 rg: 3 | total time: 0.01m | eta: 42.4m
step 00012/05000 (0.24%) | loss: 7.012345 | lrm: 1.00 | dt: 511.02ms | tok/sec: 1,025,963 | bf16_mfu: 47.03 | epoch: 1 pq: 0 rg: 4 | total time: 0.02m | eta: 42.3m
"""

AUTORESEARCH = (
    "\rstep 00011 (0.1%) | loss: 8.112345 | lrm: 1.00 | dt: 313ms | tok/sec: 1,675,034 | mfu: 39.8% | epoch: 1 | "
    "remaining: 299s    "
    "\rstep 00012 (0.2%) | loss: 8.012345 | lrm: 1.00 | dt: 312ms | tok/sec: 1,680,410 | mfu: 39.9% | epoch: 1 | "
    "remaining: 299s    "
    "\n---\nval_bpb:          0.997900\ntotal_seconds:    325.9\nnum_steps:        13\nnum_params_M:     50.3\n"
)

LLMC_CONSOLE = """\
| device                | NVIDIA A100-SXM4-80GB                              |
| peak TFlops           | 312.0                                              |
| micro batch size B    | 4                                                  |
| sequence length T     | 1024                                               |
val loss 11.011234
step    1/74 | loss 11.009123 (+nanz)| norm 15.3712 (+nanz)| lr 4.29e-07 | 1250.10 ms | 1.4% bf16 MFU | 3277 tok/s
step    2/74 | loss 10.961234 (+nanz)| norm 15.2212 (+nanz)| lr 8.57e-07 | 36.58 ms | 47.2% bf16 MFU | 112241 tok/s
step   20/74 | loss 7.511234 (-1.21z)| norm 2.1212 (+0.33z)| lr 8.57e-06 | 36.60 ms | 47.1% bf16 MFU | 112100 tok/s
val loss 7.481234
"""

LLMC_MAIN_LOG = """\
s:0 tel:11.0112
s:0 trl:11.0091 lr:0.000001 norm:15.37
s:1 trl:10.9612 lr:0.000002 norm:15.22
s:250 tel:6.1700
s:250 eval:0.2531
s:250 trl:6.1800 lr:0.000215 norm:0.91
"""

LLMC_TORCH = """\
step    1/50 | train loss 10.981234 | norm 15.1012 | lr 4.29e-07 | (4120.55 ms | 31812 tok/s)
step    2/50 | train loss 10.801234 | norm 14.9012 | lr 8.57e-07 | (210.55 ms | 622541 tok/s)
"""

LLMC_C = """\
val loss 5.251911
step 0: train loss 5.356082 (took 1412.103000 ms)
step 1: train loss 4.300639 (took 1389.511000 ms)
"""

MODDED = """\
step:0/1770 val_loss:10.8258 train_time:0ms step_avg:nanms
step:1/1770 train_time:24000ms step_avg:nanms
step:2/1770 train_time:24600ms step_avg:nanms
step:11/1770 train_time:90ms step_avg:nanms
step:13/1770 train_time:270ms step_avg:90.00ms
step:14/1770 train_time:362ms step_avg:90.50ms
step:114/1770 val_loss:4.7000 train_time:9862ms step_avg:94.83ms
step:214/1770 val_loss:4.2000 train_time:19862ms step_avg:97.36ms
"""

MODDED_2024 = """\
step:1/6200 train_loss:10.9712 train_time:215ms step_avg:nanms
step:2/6200 train_loss:10.1012 train_time:430ms step_avg:nanms
step:3/6200 train_loss:9.4012 train_time:645ms step_avg:215.00ms
step:3/6200 val_loss:9.3012 train_time:646ms step_avg:215.33ms
"""

BUILD_NANOGPT = """\
total desired batch size: 524288
=> calculated gradient accumulation steps: 8
validation loss: 10.9512
HellaSwag accuracy: 2463/10042=0.2453
step     0 | loss: 10.955029 | lr 8.3916e-07 | norm: 15.3577 | dt: 26211.98ms | tok/sec: 20001.85
step     1 | loss: 10.911029 | lr 1.6783e-06 | norm: 14.1577 | dt: 402.55ms | tok/sec: 1302418.33
validation loss: 6.4012
step   250 | loss: 6.387966 | lr 2.1063e-04 | norm: 0.9431 | dt: 9402.55ms | tok/sec: 55760.00
"""

BUILD_NANOGPT_LOG = """\
0 val 10.9512
0 hella 0.2453
0 train 10.955029
1 train 10.911029
250 val 6.4012
250 train 6.387966
"""

LITGPT = """\
Total parameters: 162,322,944
Verifying settings ...
Measured TFLOPs: 7.92
Epoch 1 | iter 8 step 1 | loss train: 10.904, val: n/a | iter time: 402.71 ms (step) remaining time: 1:02:03
Epoch 1 | iter 16 step 2 | loss train: 10.604, val: n/a | iter time: 401.71 ms (step) remaining time: 1:01:03
Validating ...
iter 16: val loss 10.5110, val time: 9020.11 ms
Saving checkpoint to 'out/step-00000002/lit_model.pth'
Epoch 1 | iter 24 step 3 | loss train: 10.204, val: 10.511 | iter time: 400.71 ms (step) remaining time: 1:00:03
Final evaluation | val loss: 9.900 | val ppl: 19930.370
"""

TORCHTITAN = """\
[rank0]:2025-03-01 10:00:00,123 - root - INFO - CUDA capacity: NVIDIA H100 with 79.11GiB memory
[rank0]:2025-03-01 10:00:05,123 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.12345  \x1b[38mgrad_norm:  1.2345  memory: 30.12GiB(38.01%)  tps: 7,012  tflops: 40.60  mfu: 13.01%\x1b[39m
[rank0]:2025-03-01 10:00:15,123 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.12345  \x1b[38mgrad_norm:  1.1345  memory: 30.12GiB(38.01%)  tps: 7,112  tflops: 41.20  mfu: 13.20%\x1b[39m
[rank0]:2025-03-01 10:00:20,123 - root - INFO - \x1b[33mvalidate step: 10  \x1b[32mloss:  7.0123  memory: 30.12GiB(38.01%)  tps: 9,001\x1b[39m
"""

HF_TRAINER = """\
  0%|          | 0/500 [00:00<?, ?it/s]
  2%|▏         | 10/500 [00:02<01:38,  5.00it/s]{'loss': 10.5912, 'grad_norm': 8.2904, 'learning_rate': 4.9e-05, 'epoch': 0.05}
  4%|▍         | 20/500 [00:04<01:36,  5.00it/s]{'loss': 8.2312, 'grad_norm': 7.7467, 'learning_rate': 4.8e-05, 'epoch': 0.1}
 50%|█████     | 5/10 [00:01<00:01,  4.00it/s]
{'eval_loss': 8.0112, 'eval_runtime': 2.5, 'eval_samples_per_second': 40.0, 'epoch': 0.1}
  6%|▌         | 30/500 [00:06<01:34,  5.00it/s]{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 4.7e-05, 'epoch': 0.15}
{'train_runtime': 101.5, 'train_samples_per_second': 39.4, 'train_loss': 9.4112, 'epoch': 0.15}
"""

HF_STATE = """\
{
  "epoch": 0.1, "global_step": 20, "max_steps": 500, "logging_steps": 10, "eval_steps": 20,
  "log_history": [
    {"epoch": 0.05, "grad_norm": 8.2904, "learning_rate": 4.9e-05, "loss": 10.5912, "step": 10},
    {"epoch": 0.1, "grad_norm": 7.7467, "learning_rate": 4.8e-05, "loss": 8.2312, "step": 20},
    {"epoch": 0.1, "eval_loss": 8.0112, "eval_runtime": 2.5, "step": 20}
  ]
}
"""

LIGHTNING = (
    "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 10.00it/s]\n"
    "Epoch 0:   0%|          | 0/200 [00:00<?, ?it/s]"
    "\rEpoch 0:   1%|          | 2/200 [00:01<01:39,  2.00it/s, v_num=3, train_loss=10.90]"
    "\rEpoch 0:   2%|▏         | 4/200 [00:02<01:38,  2.00it/s, v_num=3, train_loss=10.10]"
    "\rEpoch 1:   1%|          | 2/200 [00:01<01:39,  2.00s/it, v_num=3, train_loss=8.100]\n"
)

KEY_VALUE = """\
03:22:14 [INFO] [TRAIN] [Rank 0] step: 10, loss: 4.4310, tokens_per_second: 76,477.73, mfu: 37.59
03:22:24 [INFO] [TRAIN] [Rank 0] step: 20, loss: 4.1310, tokens_per_second: 76,001.10, mfu: 37.33
03:22:34 [INFO] [TRAIN] [Rank 0] step: 30, loss: 4.0310, tokens_per_second: 76,101.10, mfu: 37.41
"""

PLAIN_LINES = """\
step 0 | loss 10.9011 | lr 1.0e-06 | grad_norm 3.1000 | time 410.5 ms
step 10 | loss 9.2011 | lr 1.1e-05 | grad_norm 2.1000 | time 210.5 ms
step 20 | loss 8.2011 | lr 2.1e-05 | grad_norm 1.1000 | time 211.5 ms
step 20 | val loss 8.1011
"""

JSON_LINES = """\
{"step": 10, "train/loss": 4.5, "lr": 0.001, "perf": {"mfu": 0.41}}
{"step": 20, "train/loss": 4.25, "lr": 0.001, "perf": {"mfu": 0.42}}
{"step": 20, "val/loss": 4.125}
{"step": 30, "train/loss": NaN, "lr": 0.001}
"""

CSV = """\
epoch,step,train_loss,val_loss
0,49,4.5,
0,99,4.25,
0,99,,4.125
"""

WANDB_EXPORT = (
    '"Step","big - train/loss","big - train/loss__MIN","big - train/loss__MAX","small - train/loss"\n'
    '"0","10.5","10.5","10.5","10.25"\n'
    '"100","5.5","5.5","5.5","6.25"\n'
)

LITGPT_2023 = """\
iter 14 | step 7: loss 6.2211, iter time: 75.10 ms
iter 15 | step 7: loss 6.1511, iter time: 75.30 ms
iter 16 | step 8: loss 6.1042, iter time: 96.31 ms (optimizer.step)
iter 16: val loss 6.0110, val time: 3778.02 ms
"""

BRACKETS = """\
I0705 02:01:34.198068 140514656708352 train_gpu.py:303] [500] | gnorm 0.38 lr 0.000196 | loss 7.93 | pplx 2779.43, bpc 11.4406
I0705 02:06:48.962699 140514656708352 train_gpu.py:303] [1000] | gnorm 0.60 lr 0.000196 | loss 7.81 | pplx 2465.13, bpc 11.2675
"""

OF_ALL = """\
1/21150 (epoch 0.002), train_loss = 4.19766416, grad/param norm = 4.5006e-01, time/batch = 0.2520s
26/21150 (epoch 0.061), train_loss = 3.10144325, grad/param norm = 1.2006e-01, time/batch = 0.1220s
"""

BLOCKS = """\
2024-04-01 10:00:12.123\tnode-1:0\tolmo.train:910\tINFO\t[step=10/739328,epoch=0]
    optim/total_grad_norm=12.5000
    train/CrossEntropyLoss=10.2510
    throughput/device/tokens_per_second=7400
2024-04-01 10:01:12.123\tnode-1:0\tolmo.train:910\tINFO\t[step=20/739328,epoch=0]
    optim/total_grad_norm=4.2500
    train/CrossEntropyLoss=9.1250
    throughput/device/tokens_per_second=7410
"""

TWO_LINES = """\
[2023-05-01 11:00:01,001] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[6e-06], mom=[[0.9, 0.95]]
 samples/sec: 150.100 | iteration       10/  320000 | learning rate: 6.000E-06 | lm_loss: 1.045000E+01 | loss scale: 65536.0 |
[2023-05-01 11:01:01,001] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=0, lr=[1.2e-05], mom=[[0.9, 0.95]]
 samples/sec: 150.200 | iteration       20/  320000 | learning rate: 1.200E-05 | lm_loss: 9.250000E+00 | loss scale: 65536.0 |
[2023-05-01 11:02:01,001] [INFO] [logging.py:96:log_dist] [Rank 0] step=30, skipped=0, lr=[1.8e-05], mom=[[0.9, 0.95]]
 samples/sec: 150.300 | iteration       30/  320000 | learning rate: 1.800E-05 | lm_loss: 8.500000E+00 | loss scale: 32768.0 |
"""

FAIRSEQ = """\
2021-05-01 10:00:00 | INFO | train_inner | epoch 001:    100 / 3000 loss=14.921, nll_loss=14.750, ppl=27554.3, wps=120345.1, ups=3.41, wpb=35112.3, bsz=1100.2, num_updates=100, lr=1.25e-05, gnorm=3.512, clip=0, loss_scale=128, train_wall=29, wall=31
2021-05-01 10:01:00 | INFO | train_inner | epoch 001:    200 / 3000 loss=12.250, nll_loss=12.000, ppl=4096, wps=120400.5, ups=3.40, wpb=35100.1, bsz=1101.7, num_updates=200, lr=2.5e-05, gnorm=2.125, clip=0, loss_scale=128, train_wall=29, wall=61
2021-05-01 10:02:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 11.900 | nll_loss 11.500 | ppl 2896.31 | wps 301234 | wpb 5000 | bsz 120 | num_updates 200
"""

COMPOSER = """\
[batch=1/3200]:
         Train time/batch: 0
         Train time/token: 131072
         Train metrics/train/LanguageCrossEntropy: 10.9510
         Train throughput/device/tokens_per_sec: 51000.1
[batch=2/3200]:
         Train time/batch: 1
         Train time/token: 262144
         Train metrics/train/LanguageCrossEntropy: 9.8120
"""

MMENGINE = """\
10/30 22:18:02 - mmengine - INFO - Epoch(train) [1][734/735]  lr: 1.9870e-04  eta: 2:46:39  time: 2.8906  data_time: 0.0042  memory: 10762  loss: 2.7522  grad_norm: 3.0608
10/30 22:18:30 - mmengine - INFO - Epoch(train) [2][ 10/735]  lr: 1.9857e-04  eta: 2:46:12  time: 2.8865  data_time: 0.0041  memory: 10762  loss: 2.6150  grad_norm: 2.7647
"""

EPOCH_TABLE = (
    "Total time: "
    "110:29:25\nepoch\ttrain_loss\tvalid_loss\taccuracy\n1\t2.760716\t2.756633\t0.442434\n2\t6.228361\t6.220452\t0.076458\n"
)

MINGPT = """\
iter_dt 0.00ms; iter 0: train loss 4.19012
iter_dt 31.25ms; iter 100: train loss 2.51234
"""

PARAMETER_GOLF = """\
step:1000/10000 loss:3.3139 t:91682ms avg:91.7ms
step:2000/10000 loss:3.2956 t:183563ms avg:91.8ms
step:2500/10000 val_loss:3.2541 val_bpb:1.2825 train_time:229128ms
"""

MEGATRON = """\
 [2024-04-06 02:59:36] iteration       43/     100 | consumed samples:         5504 | elapsed time per iteration (ms): 5444.9 | learning rate: 8.600000E-06 | global batch size:   128 | lm loss: 1.825991E+00 | load_balancing_loss: 1.019746E+00 | loss scale: 1.0 | grad norm: 1.426 | number of skipped iterations:   0 |
 [2024-04-06 02:59:41] iteration       44/     100 | consumed samples:         5632 | elapsed time per iteration (ms): 5533.8 | learning rate: 8.800000E-06 | global batch size:   128 | lm loss: 1.875063E+00 | load_balancing_loss: 1.020033E+00 | loss scale: 1.0 | grad norm: 1.327 | number of skipped iterations:   0 |
"""

DEEPSPEED = """\
steps: 10 loss: 2.0450 iter time (s): 0.512 samples/sec: 15.600
steps: 20 loss: 1.9450 iter time (s): 0.511 samples/sec: 15.700
"""

NANOTRON = """\
01/17/2024 13:47:27 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 991 / 1000 | consumed_tokens: 634K | elapsed_time_per_iteration_ms: 45 | tokens_per_sec: 14.2K | tokens_per_sec_per_gpu: 1.78K | global_batch_size: 20 | lm_loss: 5.6 | lr: 1e-05 | grad_norm: 0.515
01/17/2024 13:47:28 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 992 / 1000 | consumed_tokens: 635K | elapsed_time_per_iteration_ms: 41.2 | tokens_per_sec: 15.5K | tokens_per_sec_per_gpu: 1.94K | global_batch_size: 20 | lm_loss: 5.5 | lr: 1e-05 | grad_norm: 0.507
"""

LEVANTER = (
    "\r0.40train:   1%|          | 100/10000 [01:00<1:39:00,  1.67it/s, loss=6.12]"
    "\r0.40train:   2%|▏         | 200/10000 [02:00<1:38:00,  1.67it/s, loss=5.01]\n"
)

MAXTEXT = """\
I0317 10:00:13.224641 125344476638336 metric_logger.py:181] completed step: 0, seconds: 31.731, TFLOP/s/device: 3.239, Tokens/s/device: 129.087, total_weights: 30193, loss: 12.138
I0317 10:00:13.658792 125344476638336 metric_logger.py:181] completed step: 1, seconds: 0.277, TFLOP/s/device: 370.707, Tokens/s/device: 14774.896, total_weights: 31850, loss: 11.939
"""

MLX = """\
Iter 1: Val loss 2.480, Val took 0.732s
Iter 10: Train loss 2.363, Learning Rate 1.000e-05, It/sec 1.022, Tokens/sec 88.083, Trained Tokens 862
Iter 20: Train loss 1.508, Learning Rate 1.000e-05, It/sec 0.826, Tokens/sec 81.866, Trained Tokens 1853
"""

MINIMIND = """\
Epoch:[1/2](0/200) loss:8.968 lr:0.000550000000 epoch_time:604.0min
Epoch:[1/2](100/200) loss:5.883 lr:0.000549993674 epoch_time:45.0min
Epoch:[2/2](0/200) loss:5.687 lr:0.000549974695 epoch_time:42.0min
"""

GPT2_SIMPLE = """\
[310 | 23899.61] loss=1.09 avg=1.36
[320 | 24645.14] loss=1.06 avg=1.35
"""

KERAS = """\
Epoch 1/2
13/13 [==============================] - 15s 1s/step - loss: 8.9449 - accuracy: 0.1634
Epoch 2/2
13/13 [==============================] - 13s 1s/step - loss: 6.7920 - accuracy: 0.2087
"""

ALL = {
    "nanogpt": NANOGPT,
    "llama2c": LLAMA2C,
    "nanolens": NANOLENS,
    "nanochat": NANOCHAT_2025,
    "nanochat 2026": NANOCHAT_2026,
    "autoresearch": AUTORESEARCH,
    "llm.c": LLMC_CONSOLE,
    "llm.c main.log": LLMC_MAIN_LOG,
    "llm.c torch": LLMC_TORCH,
    "llm.c c": LLMC_C,
    "modded-nanogpt": MODDED,
    "modded-nanogpt 2024": MODDED_2024,
    "build-nanogpt": BUILD_NANOGPT,
    "build-nanogpt log": BUILD_NANOGPT_LOG,
    "litgpt": LITGPT,
    "torchtitan": TORCHTITAN,
    "hf-trainer": HF_TRAINER,
    "hf state": HF_STATE,
    "tqdm": LIGHTNING,
    "key-value": KEY_VALUE,
    "plain": PLAIN_LINES,
    "jsonl": JSON_LINES,
    "csv": CSV,
    "wandb export": WANDB_EXPORT,
    "litgpt 2023": LITGPT_2023,
    "brackets": BRACKETS,
    "of all": OF_ALL,
    "blocks": BLOCKS,
    "two lines": TWO_LINES,
    "epoch table": EPOCH_TABLE,
    "fairseq": FAIRSEQ,
    "composer": COMPOSER,
    "mmengine": MMENGINE,
    "mingpt": MINGPT,
    "parameter-golf": PARAMETER_GOLF,
    "megatron": MEGATRON,
    "deepspeed": DEEPSPEED,
    "nanotron": NANOTRON,
    "levanter": LEVANTER,
    "maxtext": MAXTEXT,
    "mlx": MLX,
    "minimind": MINIMIND,
    "gpt-2-simple": GPT2_SIMPLE,
    "keras": KERAS,
}
