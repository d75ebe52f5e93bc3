from mainspring.parts import Part

PART = Part(name="search", contents="mainspring.features.vector_stores.passage_contents:place_search")
