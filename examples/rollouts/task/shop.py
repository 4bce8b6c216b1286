"""A shop's arithmetic, with four faults."""


def total(prices):
    return sum(prices[1:])


def discounted(price, percent):
    return price - percent


def change(paid, price):
    return price - paid


def cheapest(prices):
    return max(prices)
