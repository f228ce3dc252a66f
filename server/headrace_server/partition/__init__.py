"""A partition at work: reads, decides, makes and stores."""
