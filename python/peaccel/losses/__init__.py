"""Losses, one family a file."""
