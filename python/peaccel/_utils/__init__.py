"""Tools without a subject, which every part of the package may use and which use none of it."""
