"""Small programs that the tests' jobs run in pods; copied into the workspace, where the pods import them."""
