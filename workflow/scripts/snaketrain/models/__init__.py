"""What tasks and strategies know about models: where they come from, and their parts."""
