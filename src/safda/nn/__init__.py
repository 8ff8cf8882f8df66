"""Networks: backbones, heads, the few layers that torch lacks, and weights in files."""
