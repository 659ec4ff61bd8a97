"""Backbones: images -> pooled features, for the heads to turn into distributions."""
