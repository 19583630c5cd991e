"""Prompts of ours: tasks and topics for training, and prompts held out for evaluation.

The standard prompts (``mlxcel.assets``) and the held-out ones share no sentence with the
training prompts.
"""

from __future__ import annotations

import itertools

import numpy as np

__all__ = ["HELD_OUT", "TASKS", "TOPICS", "training_prompts"]

TASKS = (
    "Write a short introduction to {}.",
    "What should a beginner know about {}?",
    "Give me five facts about {}.",
    "List ten words that have to do with {} and say what each means.",
    "Explain {} to a child of eight.",
    "Explain {} to someone who has studied it before.",
    "Write a letter to a friend about {}.",
    "Write a dialogue between two people who disagree about {}.",
    "What are the most common mistakes people make with {}?",
    "Compare two different ways to think about {}.",
    "Write a short story in which {} plays a part.",
    "Write a poem of twelve lines about {}.",
    "Make a plan for a one-week course on {}.",
    "Write three quiz questions about {} with their answers.",
    "What are the benefits and the drawbacks of {}?",
    "Summarize the history of {} in one paragraph.",
    "Give step by step instructions for getting started with {}.",
    "Write a product description for something related to {}.",
    "What tools does one need for {}?",
    "Write a news report about {}.",
    "How has {} changed over the last hundred years?",
    "Write an email to a colleague asking for help with {}.",
    "Give an example from daily life that shows why {} matters.",
    "Describe {} without using technical words.",
    "Write a table in Markdown with three rows about {}.",
    "What would you ask an expert on {}?",
    "Write a speech of one minute about {}.",
    "Which myths about {} are wrong, and why?",
    "Suggest a project for school pupils about {}.",
    "Write a diary entry of someone who works with {}.",
    "Write a JSON object that describes {} with four fields.",
    "Translate a simple sentence about {} into French and Spanish.",
    "Write a Python class that models something from {}.",
    "Write a Python function that computes something useful about {}.",
    "Write a small HTML page about {}.",
    "Write a SQL table definition for data about {}.",
    "Write a shell script that helps someone who works on {}.",
    "Write a JavaScript function connected with {} and explain it line by line.",
    "Solve a small arithmetic problem about {} and show every step.",
    "Name the parts or stages of {} in order.",
)

TOPICS = (
    "baking bread", "bicycles", "the water cycle", "chess", "public libraries", "bees",
    "solar panels", "the Roman Empire", "learning the guitar", "vaccines", "volcanoes",
    "train travel", "saving money", "the human heart", "gardening on a balcony", "dolphins",
    "the printing press", "software testing", "electric cars", "mountain hiking", "jazz",
    "the stock market", "weather forecasts", "recycling", "photography", "the moon", "coffee",
    "time management", "the French Revolution", "earthquakes", "swimming", "databases",
    "healthy breakfasts", "the immune system", "bridges", "negotiation", "penguins", "maps",
    "the Olympic Games", "machine learning", "sleep", "cheese", "fractions", "dinosaurs",
    "renting a flat", "the ocean floor", "theatre", "probability", "wind power", "cats",
    "job interviews", "the Silk Road", "sorting a list", "antibiotics", "origami", "deserts",
    "password security", "the violin", "black holes", "team meetings", "rice", "glaciers",
    "the periodic table", "first aid", "novels", "temperature conversion", "owls", "lighthouses",
    "knitting", "the nervous system", "cooking pasta", "constitutions", "prime numbers",
    "rainforests", "running a small shop", "robots", "the sense of smell", "castles",
    "video games", "soil", "public speaking", "astronomy", "bank accounts", "butterflies",
    "wooden furniture", "the internet", "ancient Egypt", "allergies", "card games", "tea",
    "version control", "urban planning", "elephants", "music theory", "gravity", "soup",
    "moving to a new city", "the calendar", "graphs and networks", "friendship", "clouds",
    "steam engines", "text files", "yoga", "whales", "budgets", "paper", "the Renaissance",
    "dates and times", "honesty", "rivers", "spreadsheets", "skeletons", "street food",
    "satellites", "parrots", "learning a language", "matrices", "pottery", "elections",
)  # fmt: skip

HELD_OUT = (
    "How do I fix a leaking kitchen tap?",
    "Write a function in Python that reverses the words of a sentence.",
    "What is the difference between a lake and a sea?",
    "Tell me a joke about a tired baker and explain why it is funny.",
    "My neighbour plays loud music at night. What can I say to him?",
    "Write a haiku about snow on a tin roof.",
    "Give me a recipe for vegetable curry for four people.",
    "What does the law of supply and demand say?",
    "Describe the taste of a ripe mango.",
    "Who was Marie Curie and what did she discover?",
    "Write a regular expression that matches an email address and explain it.",
    "How does a refrigerator keep food cold?",
    "Plan a weekend trip to Lisbon for two people.",
    "Why do we yawn?",
    "Write a short scene in which a detective finds a lost key.",
    "What is 17 times 23? Show the calculation.",
    "Name all the planets of the solar system and one feature of each.",
    "How can I stop biting my nails?",
    "Write a thank-you note to a teacher who is retiring.",
    "Explain what an API is.",
    "What is the capital of Australia, and why is it not Sydney?",
    "Write a bash command that counts the lines of all text files in a folder.",
    "Suggest names for a small grey rabbit.",
    "What are the rules of tennis scoring?",
    "Summarize the plot of Romeo and Juliet.",
    "How do I write a good title for a blog article?",
    "Explain the difference between weather and climate.",
    "Write a Python program that prints the first twenty Fibonacci numbers.",
    "Is it better to rent or to buy a washing machine?",
    "Describe a market square early in the morning.",
    "What is a mortgage?",
    "Give three reasons to learn touch typing.",
    "Write a limerick about a goat.",
    "How are tides caused?",
    "Convert 5 kilometres to miles and explain the steps.",
    "Write a polite complaint about a late parcel.",
    "What happens when you mix vinegar and baking soda?",
    "Explain recursion with a simple example.",
    "Which exercises help against back pain?",
    "Write the opening paragraph of a ghost story.",
    "What are the main religions of the world?",
    "How do I choose a good melon?",
    "Write a class in Java for a bank account with deposit and withdraw.",
    "What should I pack for a week of camping?",
    "Explain how a rainbow is formed.",
    "Describe the life of a medieval blacksmith.",
    "How do I politely decline an invitation?",
    "List the months of the year with the number of days in each.",
)


def training_prompts(seed: int) -> list[str]:
    """Every task with every topic, in an order that depends on the seed only."""
    pairs = [task.format(topic) for task, topic in itertools.product(TASKS, TOPICS)]
    order = np.random.default_rng([seed, 1]).permutation(len(pairs))
    return [pairs[i] for i in order]
