"""What things cost. Prices are whole cents."""

PRICES = {"apple": 40, "bread": 250, "cheese": 780}


class UnknownItem(KeyError):
    pass


def price(item):
    if item not in PRICES:
        raise UnknownItem(item)
    return PRICES[item]


def parse_line(line):
    """("bread", 2) from "2 x Bread"; one where no amount is given."""
    amount, cross, name = line.partition(" x ")
    if not cross:
        return line.strip(), 1
    return name.strip().lower(), int(amount)
