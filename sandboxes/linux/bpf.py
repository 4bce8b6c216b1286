"""An assembler for classic BPF, the virtual machine that runs seccomp filters. Pure.

A program reads one `struct seccomp_data` (call number, architecture, six 64-bit arguments) in 32-bit words and
returns an action. Jumps go only forward, by at most 255 instructions, so every program ends; the kernel checks that.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

INSTRUCTION = struct.Struct("HBBI")  # struct sock_filter: code, jump if true, jump if false, k

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K, unsigned
ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data


def argument(index: int) -> int:
    """The offset of an argument's low half. Both supported architectures are little-endian."""
    return 16 + 8 * index


@dataclass(frozen=True)
class Instruction:
    code: int
    k: int
    target: str = ""  # a jump's label


@dataclass
class Assembler:
    """Collects instructions and labels, and encodes them."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def load(self, offset: int) -> None:
        self.instructions.append(Instruction(LOAD, offset))

    def jump(self, test: int, k: int, target: str) -> None:
        """Jump to `target` if the loaded word passes `test` with `k`; else go on with the next line."""
        self.instructions.append(Instruction(test, k, target))

    def answer(self, action: int, label: str = "") -> None:
        """End with `action`; `label` names this place for jumps."""
        if label:
            self.label(label)
        self.instructions.append(Instruction(RETURN, action))

    def label(self, name: str) -> None:
        if name in self.labels:
            raise ValueError(f"the label {name} is used twice")
        self.labels[name] = len(self.instructions)

    def assemble(self) -> bytes:
        """Encode the program. Raises `ValueError` for a jump that BPF cannot do: backwards, too far, or to an unknown
        label."""
        return b"".join(
            INSTRUCTION.pack(
                instruction.code,
                self._distance(at, instruction.target) if instruction.target else 0,
                0,
                instruction.k,
            )
            for at, instruction in enumerate(self.instructions)
        )

    def _distance(self, at: int, target: str) -> int:
        if target not in self.labels:
            raise ValueError(f"line {at} jumps to {target}, an unknown label")
        distance = self.labels[target] - at - 1
        if not 0 <= distance <= 255:
            raise ValueError(f"line {at} jumps to {target}, {distance} lines away: only 0 to 255 are possible")
        return distance
