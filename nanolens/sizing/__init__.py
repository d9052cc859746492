"""How large, how costly and how fast: arithmetic on shapes, schedules and devices, without torch."""
