"""Training: the loop for every method, what it deals out, what it keeps, and whole runs from recipes."""

from peaccel.train.embedding import embed
from peaccel.train.loop import Options, fit
from peaccel.train.recipes import RECIPES, recipe
from peaccel.train.runs import Result, Run, Trained, load, train
from peaccel.train.telling import Screen

__all__ = ["RECIPES", "Options", "Result", "Run", "Screen", "Trained", "embed", "fit", "load", "recipe", "train"]
