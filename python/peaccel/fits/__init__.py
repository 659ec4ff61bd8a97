"""Priors, calibrations, PLDA, thresholds with a promise and conformal sets, fitted to labelled or unlabelled items.

A file bears the name of its public function; `records` holds what the functions return.
"""
