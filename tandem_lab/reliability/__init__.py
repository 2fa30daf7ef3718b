"""What happens when things break, over a real link on this machine: cuts, kills, strangers, malformed frames."""
