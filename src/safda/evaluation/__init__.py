"""What a classifier is worth: against labels (oracle), without them (scores, verdict), and by the paper's theory."""
