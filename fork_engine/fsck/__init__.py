"""Fsck."""
