"""Words that programmers confuse: opposites, and functions and methods of one family."""

from __future__ import annotations

import re

_PAIRS = """
left right; low high; lo hi; start end; start stop; begin end; first last; first second; head tail; next prev; next previous; min max; row col; rows cols;
row column; rows columns; width height; x y; i j; a b; src dst; source target; source dest; parent child; key value; k v; upper lower;
top bottom; front back; inner outer; before after; old new; slow fast; successor predecessor; successors predecessors; incoming outgoing;
in out; input output; open close; opening closing; push pop; add remove; credit debit; total count; name value; current next; prev curr;
prev current; previous current; m n; dx dy; r c; year month; hours minutes; minutes seconds; day month; numerator denominator; children parents;
u v; p q; s t; begin stop; floor ceil; successor node; expected actual; sum count; left_sum right_sum; index value; text pattern
"""
OPPOSITES: dict[str, set[str]] = {}
for _pair in _PAIRS.replace("\n", ";").split(";"):
    if words := _pair.split():
        OPPOSITES.setdefault(words[0], set()).add(words[1])
        OPPOSITES.setdefault(words[1], set()).add(words[0])

# One family a line; in a large family, the nearest relatives first.
_FUNCTIONS = """
min max sum; any all; floor ceil round int; int float round str; sorted reversed list; sorted set list tuple; len sum max; abs int;
ord chr; zip enumerate; gcd lcm; sum len; hex bin oct; isinstance issubclass; permutations combinations product combinations_with_replacement;
heappush heappushpop; heappop heappushpop; nlargest nsmallest; bisect_left bisect_right bisect; insort insort_left insort_right; log log2 log10 sqrt;
map filter; list set tuple; sqrt isqrt; list iter; range len; dict list; prod sum
"""
_METHODS = """
append extend insert add appendleft; extend append extendleft update; add discard remove append; discard add remove; remove discard pop; pop popleft clear popitem;
popleft pop; appendleft append; items values keys; keys items values; values items keys; upper lower title capitalize casefold; lower upper casefold; title capitalize upper;
capitalize title upper; startswith endswith; endswith startswith; strip lstrip rstrip; lstrip strip rstrip; rstrip strip lstrip; find rfind index; rfind find; index rindex find;
split rsplit splitlines partition; rsplit split; splitlines split; partition rpartition split; rpartition partition; isdigit isalpha isalnum isnumeric; isalpha isdigit isalnum isupper islower;
isalnum isalpha isdigit; isupper islower; islower isupper; union intersection difference symmetric_difference; intersection union difference; difference symmetric_difference intersection union;
symmetric_difference difference union; issubset issuperset; issuperset issubset; update add setdefault; get pop setdefault; setdefault get; sort reverse; reverse sort; ljust rjust center zfill;
rjust ljust center zfill; center ljust rjust; zfill rjust ljust; count index find; replace strip; match search fullmatch; search match findall; findall finditer search; fullmatch match;
most_common items elements; days seconds total_seconds; seconds total_seconds days; insert append; elements most_common; copy keys; weekday isoweekday; isoweekday weekday;
heappush append; join format; get_nowait get; subtract update; intersection_update difference_update update; difference_update intersection_update update; removeprefix lstrip removesuffix; lstrip removeprefix; rstrip removesuffix
"""
_ERRORS = "ValueError TypeError KeyError IndexError ZeroDivisionError AttributeError LookupError RuntimeError StopIteration OverflowError NotImplementedError Exception"


def _families(text: str, *, symmetric: bool) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for family in text.replace("\n", " ").split(";"):
        members = family.split()
        for member in members if symmetric else members[:1]:
            known = table.setdefault(member, [])
            known += [other for other in members if other != member and other not in known]
    return table


FUNCTIONS = _families(_FUNCTIONS, symmetric=True)
METHODS = _families(_METHODS, symmetric=False)
ERRORS = _ERRORS.split()


def opposite(one: str, two: str) -> bool:
    """Return True if the names differ in one word, and those words are opposites (`left_sum`, `right_sum`)."""
    first, second = re.split(r"_|(?<=\D)(?=\d)", one), re.split(r"_|(?<=\D)(?=\d)", two)
    if len(first) != len(second):
        return False
    differing = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    return len(differing) == 1 and differing[0][1] in OPPOSITES.get(differing[0][0], set())


def likeness(one: str, two: str) -> float:
    """Return how easily one name is written for another: 1 for unrelated names, up to 3."""
    if opposite(one, two):
        return 3.0
    if len(one) == len(two) == 1:
        return 2.0
    words, others = set(one.lower().split("_")), set(two.lower().split("_"))
    return 2.0 if words & others or one in two or two in one else 1.0
