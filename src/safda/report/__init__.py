"""Pictures of what adaptation did."""
