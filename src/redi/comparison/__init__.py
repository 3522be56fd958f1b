"""Paired comparisons of many rows on one frozen model, or of several backbones on the same data."""
