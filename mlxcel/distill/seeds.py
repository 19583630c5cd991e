"""Prompts of ours: for training, by combination, and those held out for evaluation.

The standard prompts (``mlxcel.assets``) and the held-out ones share no sentence with the
training prompts.
"""

from __future__ import annotations

import itertools

import numpy as np

__all__ = ["HELD_OUT", "TASKS", "TOPICS", "training_prompts"]

PROMPTS = 30_000  # in the proportions below
SHARES = {"tasks": 0.55, "coding": 0.2, "questions": 0.2, "numbers": 0.05}

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

MODIFIERS = (
    "", "", " Keep it short.", " Use simple words.", " Be detailed.",
    " Answer in three paragraphs.", " Use bullet points.", " Give examples.",
)  # fmt: skip

LANGUAGES = (
    "Python", "Python", "JavaScript", "Java", "C", "C++", "Go", "Rust", "Ruby", "TypeScript",
)  # fmt: skip
CODING = (
    "Write a {} function that {}.",
    "Write a {} program that {}.",
    "Show me {} code that {}, with comments.",
    "I need a {} function that {}. Add a docstring or comment and an example call.",
    "How would you write {} code that {}? Explain it step by step.",
    "Write a {} function that {} and a few tests for it.",
)
JOBS = (
    "checks whether a number is prime", "checks whether a word is a palindrome",
    "computes the factorial of a number", "counts the vowels in a string",
    "finds the largest number in a list", "removes duplicates from a list",
    "reads a file and prints its lines", "converts Celsius to Fahrenheit",
    "computes the greatest common divisor of two numbers", "sorts a list of names",
    "searches a sorted list by halving", "counts how often each word occurs in a text",
    "flattens a nested list", "transposes a matrix", "multiplies two matrices",
    "implements a stack with push and pop", "implements a queue", "implements a linked list",
    "walks a binary tree in order", "finds the shortest path in a graph",
    "validates a password", "generates a random password", "parses a date",
    "computes the mean and the median of numbers", "rolls two dice many times",
    "prints a triangle of stars", "converts a number to binary", "adds up the digits of a number",
    "finds the second smallest element", "rotates a list by k places",
    "checks whether two words are anagrams", "downloads a web page", "parses a JSON file",
    "writes rows to a CSV file", "groups words by their first letter",
    "computes compound interest", "splits a bill between friends", "plays rock, paper, scissors",
    "guesses a number by asking", "encodes a message with a Caesar cipher",
    "checks balanced brackets", "finds all subsets of a set", "prints the multiplication table",
    "simulates a traffic light", "keeps a shopping list", "converts Roman numerals",
    "finds common elements of two arrays", "calculates the area of a circle",
    "counts down from ten", "draws a chessboard as text", "computes a running average",
    "finds the longest word in a sentence", "capitalizes every word", "swaps two variables",
    "implements bubble sort", "implements quicksort", "implements insertion sort",
    "caches the results of a slow function", "retries a request that fails",
    "measures how long a piece of code takes",
)  # fmt: skip

QUESTIONS = (
    "Why {}?", "Explain why {}.", "Can you tell me why {}?",
    "My daughter wants to know why {}. What do I tell her?",
    "Explain in a short essay why {}.", "In a few sentences: why {}?",
    "Explain the science behind it: why {}?", "What is the reason that {}?",
)  # fmt: skip
FACTS = (
    "the sky is blue", "ice floats on water", "the sea is salty", "we have seasons",
    "iron rusts", "bread rises", "birds fly south", "cats purr", "onions make us cry",
    "the moon has phases", "thunder follows lightning", "metal feels colder than wood",
    "soap removes grease", "plants need light", "people dream", "hot air rises",
    "a compass points north", "stars twinkle", "we get goose bumps", "prices rise",
    "languages change", "some people are left-handed", "the days get longer in spring",
    "boats float", "planes can fly", "batteries run empty", "glass is transparent",
    "milk turns sour", "muscles get sore", "we need sleep", "bees build hexagons",
    "cities grow near rivers", "countries trade", "people vote", "music makes us feel things",
    "exercise is healthy", "computers use binary numbers", "programs have bugs",
    "passwords should be long", "backups matter", "teams write tests", "water boils",
    "deserts are cold at night", "earthquakes happen", "volcanoes erupt", "snow is white",
    "dogs bark", "spiders spin webs", "fish can breathe under water", "whales sing",
    "the heart beats faster when we run", "vaccines work", "teeth need brushing",
    "vegetables are healthy", "sugar is sweet", "chilli is hot", "wine ages", "paper burns",
    "magnets attract", "clocks go forward", "people tell stories", "children play",
    "friends matter", "art is valuable", "history is taught at school", "maps distort",
    "the Roman Empire fell", "castles have thick walls", "bridges have arches",
    "rockets need so much fuel", "satellites stay up", "the ozone layer matters",
    "forests are important", "recycling helps", "habits are hard to change",
    "first impressions count", "sharing is fair", "laws are needed", "taxes are paid",
    "insurance exists",
)  # fmt: skip

NUMBERS = (
    "Write the multiplication table of {}.", "List the first {} square numbers.",
    "List all even numbers below {}.", "List the multiples of {} up to ten times {}.",
    "Name {} animals, one per line.", "Name {} countries and their capitals.",
    "Write {} sentences that start with the letter A.", "Count backwards from {} in steps of two.",
    "List {} words that rhyme with 'day'.", "Give {} synonyms of 'big'.",
    "Write the numbers from {} downwards in words.", "Name {} fruits in alphabetical order.",
    "List {} verbs with their past tense.",
    "Make a numbered list of {} things to do on a rainy day.",
    "Write a timetable with {} entries.", "List {} chemical elements with their symbols.",
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


def _combined(rng: np.random.Generator) -> dict[str, list[str]]:
    """Every combination of each sort, in an order of its own."""
    product = itertools.product
    sorts = {
        "tasks": [t.format(o) + m for t, o, m in product(TASKS, TOPICS, MODIFIERS)],
        "coding": [c.format(n, j) for c, n, j in product(CODING, LANGUAGES, JOBS)],
        "questions": [q.format(f) + m for q, f, m in product(QUESTIONS, FACTS, MODIFIERS)],
        "numbers": [t.format(*[n] * t.count("{}")) for t, n in product(NUMBERS, range(3, 100))],
    }
    return {name: [all_[i] for i in rng.permutation(len(all_))] for name, all_ in sorts.items()}


def training_prompts(seed: int) -> list[str]:
    """Combinations of the lists above, in an order that depends on the seed only."""
    rng = np.random.default_rng([seed, 1])
    chosen = []
    for name, prompts in _combined(rng).items():
        count = int(PROMPTS * SHARES[name])
        chosen += [prompts[i % len(prompts)] for i in range(count)]
    return [chosen[i] for i in rng.permutation(len(chosen))]
