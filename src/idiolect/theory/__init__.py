"""What can be known without training: closed forms that tests and experiments check methods against."""
