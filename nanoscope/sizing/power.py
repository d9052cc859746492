"""Rated board power of devices in watts, for the energy of a run: rating x time is what it can have drawn at most, not what it drew."""

from __future__ import annotations

BOARD_WATTS = {
    "RTX 3050": 130, "RTX 3060": 170, "RTX 3060 Ti": 200, "RTX 3070": 220, "RTX 3070 Ti": 290, "RTX 3080": 320, "RTX 3080 Ti": 350,
    "RTX 3090": 350, "RTX 3090 Ti": 450, "RTX 4060": 115, "RTX 4060 Ti": 165, "RTX 4070": 200, "RTX 4070 Super": 220, "RTX 4070 Ti": 285,
    "RTX 4070 Ti Super": 285, "RTX 4080": 320, "RTX 4080 Super": 320, "RTX 4090": 450, "RTX 5050": 130, "RTX 5060": 145, "RTX 5060 Ti": 180,
    "RTX 5070": 250, "RTX 5070 Ti": 300, "RTX 5080": 360, "RTX 5090": 575, "RTX 2060": 160, "RTX 2060 Super": 175, "RTX 2070": 175,
    "RTX 2070 Super": 215, "RTX 2080": 215, "RTX 2080 Super": 250, "RTX 2080 Ti": 250, "Titan RTX": 280, "RTX A4000": 140, "RTX A5000": 230,
    "RTX A6000": 300, "A4000": 140, "A5000": 230, "A6000": 300, "RTX 6000 Ada": 300, "A10": 150, "A30": 165, "A40": 300, "L4": 72, "L40": 300,
    "L40S": 350, "A100": 400, "H100": 700, "H100 SXM": 700, "H100 PCIe": 350, "H200": 700, "V100": 300, "V100 PCIe": 250, "T4": 70, "P100": 250,
    "P40": 250, "GTX 1080": 180, "GTX 1080 Ti": 250,
}  # fmt: skip
"""Vendors' product pages; the SXM part where a name has two."""


def board_watts(device_name: str) -> float | None:
    return BOARD_WATTS.get(device_name)
