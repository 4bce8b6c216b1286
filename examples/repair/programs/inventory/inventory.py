"""Stock in several warehouses."""


class OutOfStock(Exception):
    pass


class Warehouse:
    def __init__(self, name, stock={}):
        self.name = name
        self.stock = stock

    def add(self, item, amount=1):
        if amount < 1:
            raise ValueError("amount must be positive")
        self.stock[item] = self.stock.get(item, 0) + amount

    def remove(self, item, amount=1):
        have = self.stock.get(item, 0)
        if have < amount:
            raise OutOfStock(f"{self.name}: {have} of {item}, {amount} wanted")
        if have == amount:
            del self.stock[item]
        else:
            self.stock[item] = have - amount

    def total(self):
        return sum(self.stock.values())


def move(source, target, item, amount=1):
    """From one warehouse to another: all or nothing."""
    source.remove(item, amount)
    target.add(item, amount)


def find(warehouses, item):
    """Names of the warehouses that have an item, the fullest first."""
    having = [w for w in warehouses if item in w.stock]
    having.sort(key=lambda w: (-w.stock[item], w.name))
    return [w.name for w in having]
