"""Prints which of the shop's functions are right, and the reward: the share of them."""

import json

import shop

CHECKS = {
    "total": lambda: shop.total([2, 3, 5]) == 10,
    "discounted": lambda: shop.discounted(200, 10) == 180,
    "change": lambda: shop.change(50, 20) == 30,
    "cheapest": lambda: shop.cheapest([3, 1, 2]) == 1,
}


def passes(check):
    try:
        return check()
    except Exception:  # noqa: BLE001  whatever goes wrong, the check has failed
        return False


right = {name: passes(check) for name, check in CHECKS.items()}
print(json.dumps({"right": [name for name, ok in right.items() if ok], "reward": sum(right.values()) / len(right)}))
