"""Peaks against the published figures, and names as people write them."""

import pytest

from nanolens.sizing.devices import hardware_named, known_devices

PUBLISHED_TFLOPS = {
    "RTX 3060": 25.5,
    "RTX 3060 Ti": 32.4,
    "RTX 3070": 40.6,
    "RTX 3080": 59.5,
    "RTX 3080 Ti": 68.2,
    "RTX 3090": 71.2,
    "RTX 3090 Ti": 80.0,
    "RTX 4060": 30.2,
    "RTX 4060 Ti": 44.1,
    "RTX 4070": 58.3,
    "RTX 4070 Super": 71.0,
    "RTX 4070 Ti": 80.2,
    "RTX 4070 Ti Super": 88.2,
    "RTX 4080": 97.5,
    "RTX 4080 Super": 104.4,
    "RTX 4090": 165.2,
    "RTX 5060": 38.4,
    "RTX 5060 Ti": 47.4,
    "RTX 5070": 61.7,
    "RTX 5070 Ti": 87.9,
    "RTX 5080": 112.6,
    "RTX 5090": 209.5,
    "RTX A6000": 154.8,
    "RTX 6000 Ada": 364,
    "A100": 312,
    "H100": 989,
    "A10": 125,
    "L4": 121,
}


@pytest.mark.parametrize(("name", "tflops"), PUBLISHED_TFLOPS.items())
def test_the_peak_is_the_whitepaper_s_to_half_a_per_cent(name, tflops):
    assert known_devices()[name].peaks["bfloat16"] == pytest.approx(tflops * 1e12, rel=0.005)


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("1x RTX 4070 Ti 12GB", "RTX 4070 Ti", 1),
        ("1x RTX 4070 12GB", "RTX 4070", 1),
        ("RTX 4070 Ti SUPER", "RTX 4070 Ti Super", 1),
        ("NVIDIA GeForce RTX 4070 Ti", "RTX 4070 Ti", 1),
        ("4070ti", "RTX 4070 Ti", 1),
        ("rtx4090", "RTX 4090", 1),
        ("8x H100", "H100", 8),
        ("A100 (several)", "A100", None),
        ("A100 SXM4 (several)", "A100", None),
        ("NVIDIA A100-SXM4-40GB", "A100", 1),
        ("4x V100 16GB", "V100", 4),
        ("MacBook Pro M3 Max 64GB", "M3 Max", 1),
        ("Colab, poster says Tesla K80", "K80", 1),
        ("4x RTX A4500", "RTX A4500", 4),
        ("NVIDIA L40S", "L40S", 1),
        ("NVIDIA L4", "L4", 1),
        ("Tesla T4", "T4", 1),
        ("H100 PCIe", "H100 PCIe", 1),
        ("2x TITAN Xp", "Titan Xp", 2),
        ("a box with 4 of those rtx4090s", "RTX 4090", 4),
        ("two RTX 3090s", "RTX 3090", 2),
        ("4080s", "RTX 4080 Super", 1),
        ("8 A100s", "A100", 8),
        ("AMD MI300X (ROCm port of llm.c)", "MI300X", 1),
        ("Apple M2", "M2", 1),
        ("A100 x 4", "A100", 4),
        ("2 × RTX 3090", "RTX 3090", 2),
    ],
)
def test_names_as_people_write_them(text, name, count):
    found = hardware_named(text)
    assert found.device is not None
    assert (found.device.name, found.count) == (name, count)


@pytest.mark.parametrize(
    "text",
    [
        "24GB GPU",
        "one small GPU (unnamed)",
        "Colab GPU",
        "8 GPUs (inferred)",
        "RTX 4070 Laptop GPU",
        "GPU",
        "",
        "RTX 9999",
    ],
)
def test_what_names_no_device_gets_none(text):
    assert hardware_named(text).device is None


def test_what_is_said_besides_the_name_is_kept():
    assert hardware_named("24GB GPU").memory_gb == 24
    assert hardware_named("8 GPUs (inferred)").count == 8
    assert hardware_named("laptop CPU, measured peak 30 GFLOP/s").kind == "cpu"
    assert hardware_named("RTX 4070 Laptop GPU").is_laptop


def test_cards_before_ampere_have_no_bfloat16():
    for name in ("V100", "T4", "RTX 2080 Ti"):
        device = hardware_named(name).device
        assert device is not None and device.peak("bfloat16") is None and device.best_dtype == "float16"


def test_a_geforce_gains_only_twice_from_16_bit():
    device = hardware_named("RTX 4070").device
    assert device is not None and device.peak("bfloat16") == pytest.approx(2 * device.peak("float32"), rel=0.01)
