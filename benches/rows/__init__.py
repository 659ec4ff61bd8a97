"""Rows of the tables, in groups; a group is a function that yields rows, smaller ones where it is asked to be quick."""
