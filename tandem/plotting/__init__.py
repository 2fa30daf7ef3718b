"""Pictures of what happened. They need matplotlib (the extra `plot`), which is imported only when one is drawn."""
