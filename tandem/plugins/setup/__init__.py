"""Commands that set Tandem up: `tandem init` writes the settings, `tandem doctor` says what a machine lacks."""
