"""The till of a small shop. Three of its functions are wrong."""


def total(prices):
    return sum(prices[1:])


def discounted(price, percent):
    return price - percent


def change(paid, price):
    return price - paid


def cheapest(prices):
    return min(prices)
