"""`python3 -B checks.py`: which functions of the till are right."""

import sys

import shop

CHECKS = [
    ("a total has every price", lambda: shop.total([3, 4, 5]) == 12),
    ("a discount is a percentage", lambda: shop.discounted(200, 10) == 180),
    ("change is what was paid too much", lambda: shop.change(20, 13) == 7),
    ("the cheapest price", lambda: shop.cheapest([4, 2, 9]) == 2),
]

failed = [name for name, holds in CHECKS if not holds()]
for name in failed:
    print("FAILED", name)
print(f"{len(CHECKS) - len(failed)} passed, {len(failed)} failed")
sys.exit(bool(failed))
