"""Measured speed: the dense path and every reducer on this machine, next to the analytic prediction.

The measured time runs from normalised pixels to the final hidden states: embedding, reducer and blocks. One-shot
reducers use the paper's budget and random scores, because time does not depend on scores. Progressive reducers use
the schedule that costs as much as the paper's operator, and their time includes the matching. Each one-shot reducer
has a second row that includes the pass that makes the scores.
"""
