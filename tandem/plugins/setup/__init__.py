"""Commands about an installation: `init` writes its settings, `doctor` says what it lacks, `status` what runs."""
