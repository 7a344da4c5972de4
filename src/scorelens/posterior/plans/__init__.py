"""Execution plans: exact ways to compute the distances between noisy images and images of the source, one file each.

A plan computes distances and their gradient, nothing else: the softmax, the chunks and the backward pass belong to the
engine. Each kind of query lists the plans that suit it (queries.py), and the cheapest one runs (costs.py).
"""
