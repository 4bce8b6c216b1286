"""A cache that forgets what was not used for the longest time."""


class Node:
    def __init__(self, key=None, value=None):
        self.key = key
        self.value = value
        self.before = None
        self.after = None


class LRUCache:
    """At most `capacity` entries. Reading or writing an entry makes it the newest."""

    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        self.nodes = {}
        self.oldest = Node()
        self.newest = Node()
        self.oldest.after = self.newest
        self.newest.before = self.oldest

    def _unlink(self, node):
        node.before.after = node.after
        node.after.before = node.before

    def _push(self, node):
        last = self.newest.before
        last.after = node
        node.before = last
        node.after = self.newest
        self.newest.before = node

    def get(self, key, default=None):
        node = self.nodes.get(key)
        if node is None:
            return default
        self._unlink(node)
        self._push(node)
        return node.value

    def put(self, key, value):
        if key in self.nodes:
            self._unlink(self.nodes[key])
        elif len(self.nodes) == self.capacity:
            eldest = self.oldest.after
            self._unlink(eldest)
            del self.nodes[eldest.value]
        node = Node(key, value)
        self.nodes[key] = node
        self._push(node)

    def __len__(self):
        return len(self.nodes)

    def keys(self):
        """From the oldest to the newest."""
        found = []
        node = self.oldest.after
        while node is not self.newest:
            found.append(node.key)
            node = node.after
        return found
