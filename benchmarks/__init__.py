"""Measurements: speed as ratios within one run, and the studies behind figures in the docs."""
