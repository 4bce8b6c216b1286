"""The price of an order: discounts for many, free delivery above a sum. Two bugs, in two modules."""

from catalogue import parse_line, price

DELIVERY = 390
FREE_FROM = 3000
DISCOUNTS = [(10, 10), (5, 5)]  # from so many pieces, so many per cent


def line_total(item, amount):
    """Cents for an amount of one item, rounded down."""
    full = price(item) * amount
    for pieces, percent in DISCOUNTS:
        if amount >= pieces:
            return full - full * percent // 100
    return full


def subtotal(lines):
    total = 0
    for line in lines:
        item, amount = parse_line(line)
        total += line_total(item, amount)
    return total


def total(lines):
    """With delivery, unless the goods reach the sum that makes it free."""
    goods = subtotal(lines)
    if not goods:
        return 0
    return goods if goods > FREE_FROM else goods + DELIVERY


def receipt(lines):
    """One text line an item, and the total."""
    rows = []
    for line in lines:
        item, amount = parse_line(line)
        rows.append(f"{amount:>3} {item:<10}{line_total(item, amount) / 100:>8.2f}")
    rows.append(f"{'total':<14}{total(lines) / 100:>8.2f}")
    return "\n".join(rows)
