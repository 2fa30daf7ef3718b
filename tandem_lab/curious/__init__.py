"""What an honest but curious cloud can guess of the device's documents from what it receives."""
