"""What of a world's processes a snapshot keeps, and how: dumped whole, forked in memory, or started again."""
