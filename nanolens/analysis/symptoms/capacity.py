"""The model is too small for what it has been fed, or has an unsuitable shape.

What it sees. Many tokens for each parameter (100 and more; about 20 use a budget best), train no lower than val, and either a curve
that has gone flat while the learning rate is still high, or a name that promises a larger model. And shapes whose width cannot
carry the vocabulary.

Why it matters. Such a run is at what its size can do. More steps bring little; dropout costs; the same hours in a larger model
bring more.

When it is wrong. A small model may be what is wanted: then the finding says what it costs. A known run of the same model and data
that ends at the same loss shows that all is well. A rate that has decayed makes any curve flat.

What it looks like. 41 million parameters after 7.6 billion tokens, 186 for each, named 125M:

    step 14500: train loss 3.6415, val loss 3.5696

What to change. A wider model (n_embd 768 for 384) at the same tokens per update, without dropout.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis.symptoms.parameter_count import claimed
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import trend
from nanolens.message import msg

CODES = ("underfitting_capacity",)

MANY_TOKENS = 100.0  # a parameter: five times what a compute-optimal run sees
NARROW = 4.0  # n_embd / n_layer below which depth is bought with width (GPT-2: 64 to 33)


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if case.is_pretrained:
        return
    yield from _shape(case)
    parameters = case.need("parameters")
    tokens = case.tokens_at(case.last_step)
    if tokens is None:
        case.need("tokens_per_update")
    assert tokens is not None
    per_parameter = tokens / parameters.value
    if per_parameter < MANY_TOKENS or not _train_is_no_lower(case):
        return
    if _is_known_result(case):
        return
    signs = []
    promised = claimed(case)
    if promised is not None and promised.count > 1.5 * parameters.value:
        signs.append(
            Evidence(
                msg("parameters"), parameters.value, promised.count, promised.where, msg("the size that its name promises"), "parameters"
            )
        )
    flat = _flat_at_high_rate(case)
    if flat is not None:
        signs.append(flat)
    evidence = Evidence(
        msg("tokens seen for each parameter"),
        per_parameter,
        (10.0, 40.0),
        msg("step {step:count}", step=case.last_step),
        msg("{tokens:tokens} tokens / {count:parameters} parameters; about 20 use a budget best", tokens=tokens, count=parameters.value),
        "number",
    )
    gap = _gap_evidence(case)
    shape = case.shape
    wider = _wider(shape.n_embd) if shape is not None else None
    yield Finding(
        "underfitting_capacity",
        "likely" if signs else "possible",
        msg(
            "the model is near what its size can do: train is no lower than val after {ratio:number} tokens for each parameter",
            ratio=per_parameter,
        ),
        (evidence, *gap, *signs),
        Change(
            msg("train a wider model, without dropout; more steps of this one bring little"),
            key="n_embd" if wider else "",
            old=shape.n_embd if shape else None,
            new=wider,
        ),
        msg("a larger model on the same tokens ends no lower"),
    )


def _train_is_no_lower(case: Case) -> bool:
    both = np.isfinite(case.evals.val) & np.isfinite(case.evals.train)
    if not both.any():
        return False
    gap = (case.evals.val - case.evals.train)[both][-3:]
    noise = case.eval_noise.value if case.eval_noise is not None else 0.01
    return float(np.median(gap)) <= 2 * 1.41 * noise + 0.01


def _is_known_result(case: Case) -> bool:
    """A known run of the same model and corpus that ends here: as good as it gets, and known to be."""
    known = case.reference
    if known is None or known.end_val is None or not len(case.vals[1]):
        return False
    return float(case.vals[1][-1]) <= known.end_val + 5 * known.spread


def _flat_at_high_rate(case: Case) -> Evidence | None:
    """The last third of the curve has no slope beyond its noise although the rate is far above its end."""
    x, y = case.curve
    if len(y) < 9:
        return None
    third = x >= x[0] + 2 / 3 * (x[-1] - x[0])
    if third.sum() < 4:
        return None
    slope = trend(x[third], y[third])
    rate, peak = case.rate_at(case.last_step), case.peak_rate
    if slope is None or rate is None or peak is None or rate < 0.25 * peak:
        return None
    fall = -slope.slope * (x[third][-1] - x[third][0])
    before = float(np.median(y[: max(1, len(y) // 3)]) - np.median(y[third]))
    if fall > 0.02 * max(before, 0.1) + 0.01:
        return None
    how = msg("robust slope over the last third, at {share:share} of the largest learning rate", share=rate / peak)
    return Evidence(
        msg("fall of the loss over the last third"),
        fall,
        msg("above {least:nats}", least=0.02 * before),
        msg("steps {first:count} to {last:count}", first=int(x[third][0]), last=int(x[-1])),
        how,
        "nats",
    )


def _gap_evidence(case: Case) -> list[Evidence]:
    both = np.flatnonzero(np.isfinite(case.evals.val) & np.isfinite(case.evals.train))
    last = int(both[-1])
    gap = float(case.evals.val[last] - case.evals.train[last])
    return [
        Evidence(
            msg("val loss minus train loss"),
            gap,
            msg("above 0 where text is memorised"),
            msg("step {step:count}", step=int(case.evals.step[last])),
            msg("both evaluated the same way"),
            "nats",
        )
    ]


def _wider(width: int) -> int:
    return 768 if width < 768 else 2 * width


def _shape(case: Case) -> Iterator[Finding]:
    layers, width, vocab = case.whole("n_layer"), case.whole("n_embd"), case.vocab_size
    if layers is None or width is None or width / layers >= NARROW or width > 256 or layers < 12:
        return
    is_large_vocab = vocab is not None and vocab.value >= 8192
    blocks = 12 * layers * width * width
    better = max(2, round(blocks / (12 * 512 * 512))) if blocks > 12 * 512 * 512 else 0
    heads = case.whole("n_head") or 1
    evidence = [
        Evidence(
            msg("width for each layer (n_embd / n_layer)"),
            width / layers,
            (30.0, 100.0),
            case.where("n_embd"),
            msg("{width:count} / {layers:count}; GPT-2's models have 33 to 64", width=width, layers=layers),
            "number",
        ),
        Evidence(
            msg("size of a head (n_embd / n_head)"),
            width / heads,
            (32.0, 128.0),
            case.where("n_head"),
            msg("{width:count} / {heads:count}", width=width, heads=heads),
            "number",
        ),
        Evidence(
            msg("parameters of the blocks"),
            blocks,
            msg("above {least:parameters}", least=10e6),
            case.where("n_layer"),
            msg("12 x n_layer x n_embd x n_embd"),
            "parameters",
        ),
    ]
    yield Finding(
        "underfitting_capacity",
        "likely" if is_large_vocab or vocab is None else "possible",
        msg("{width:count} numbers for each token cannot carry this vocabulary: the model is deep and far too narrow", width=width),
        tuple(evidence),
        Change(
            msg("spend the same parameters on width: 6 to 12 layers of 384 to 512"), key="n_embd", old=width, new=512 if better else 384
        ),
        msg("a wider model of the same cost ends no lower"),
    )
