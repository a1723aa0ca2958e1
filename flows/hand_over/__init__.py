"""What a run hands over: its model in a folder of its own, with a card, on the hub or in a file; and predictions."""
