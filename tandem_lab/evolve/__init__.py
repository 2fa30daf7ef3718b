"""The experiment on a target that evolves under a frozen drafter: `tandem lab evolve`."""
