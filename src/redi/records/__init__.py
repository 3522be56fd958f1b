"""Typed results and the artefacts of a run, readable without any model."""
