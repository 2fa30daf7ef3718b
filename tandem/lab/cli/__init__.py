"""The commands of `tandem lab`."""
