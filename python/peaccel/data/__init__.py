"""Readers of data sets: images, labels and what is known of each image's quality, as plain numpy arrays."""
