"""Coins for an amount."""


def ways(amount, coins):
    """In how many ways coins of these kinds, each as often as you like, make the amount."""
    if amount < 0 or not coins:
        return 0
    first, *others = coins
    return ways(amount - first, coins) + ways(amount, others)


def fewest(amount, coins):
    """The fewest coins for an amount, as a sorted list; None where there is no way."""
    best = [0] + [None] * amount
    used = [0] * (amount + 1)
    for value in range(1, amount + 1):
        for coin in coins:
            if coin <= value and best[value - coin] is not None:
                count = best[value - coin] + 1
                if best[value] is None or count < best[value]:
                    best[value] = count
                    used[value] = coin
    if best[amount] is None:
        return None
    taken = []
    while amount:
        taken.append(used[amount])
        amount -= used[amount]
    return sorted(taken)


def greedy(amount, coins):
    """Largest coins first: quick, not always the fewest, and not always possible."""
    taken = []
    for coin in sorted(coins, reverse=True):
        while amount >= coin:
            taken.append(coin)
            amount -= coin
    return taken if amount == 0 else None
