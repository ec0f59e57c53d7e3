"""What of a recorded program is worth writing: the rows around the one that is asked for, if they stand for all.

A forward of thousands of rows would be written whole for the sake of one. Where the operators give the kept rows the
bits that they had among all others, nothing that an experiment could show is lost. Where they do not (the row's bits
depend on how many there are, or on earlier ones), the rows stay, and what they hold is blanked as far as that changes
nothing (blank.py). Where there are rows of nobody, whose content might matter, everything is written.
"""

from __future__ import annotations

from .blank import blanked
from .program import Program
from .rows import gives
from .shrink import with_rows

FEWEST, STEP = 64, 4


def lean(program: Program, sequence: int, position: int) -> Program:
    """The program on a window of rows around (sequence, position), or as it is."""
    count = len(program.rows)
    if [sequence, position] not in program.rows or any(key[0] < 0 for key in program.rows):
        return program
    target, size = program.rows.index([sequence, position]), FEWEST
    while size < count:
        # Kernels work in tiles of powers of two: a row keeps its place in them.
        start = target // size * size
        cut = with_rows(program, list(range(start, min(start + size, count))))
        if cut is None:
            break
        if gives(cut, cut.expected.reshape(len(cut.rows), -1)):
            program = cut
            break
        size *= STEP
    return blanked(program, sequence, position) if len(program.rows) > FEWEST else program
