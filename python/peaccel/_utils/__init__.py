"""What every part of the package may use, and which uses none of it."""
