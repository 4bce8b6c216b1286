"""benchmarks/machine.py distinguishes generations of processors with the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.machine import machine, processor

EPYC = """\
processor\t: 0
model name\t: AMD EPYC
cpu family\t: {}
model\t\t: {}
flags\t\t: fpu {}

processor\t: 1
flags\t: none
"""


@pytest.mark.parametrize(
    ("cpuinfo", "said"),
    [
        (EPYC.format(25, 1, "avx avx2 bmi2"), "AMD EPYC, family 25 model 1, avx2"),
        (EPYC.format(26, 2, "avx2 avx512f avx512_bf16"), "AMD EPYC, family 26 model 2, avx512_bf16"),
        ("processor: 0\nFeatures: fp asimd\n", "asimd"),
    ],
)
def test_a_processor_is_described_with_its_widest_vectors(tmp_path: Path, cpuinfo: str, said: str) -> None:
    at = tmp_path / "cpuinfo"
    at.write_text(cpuinfo)
    assert processor(at).endswith(said)


def test_without_cpuinfo_the_platform_is_reported(tmp_path: Path) -> None:
    assert processor(tmp_path / "none") and "loop_ms" in machine()
