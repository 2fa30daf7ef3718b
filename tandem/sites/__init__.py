"""Sites: the actors of each party wired, prepared and asked, whatever runs them; and all of a site in one process."""
