"""What can be known without training: closed forms to check methods against."""
