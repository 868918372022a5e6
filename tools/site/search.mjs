// The search box uses these options, and so does the test of the search.

// indexOptions are the fields of VitePress's index.
export const indexOptions = { fields: ['title', 'titles', 'text'], storeFields: ['title', 'titles'] }

// searchOptions rank results: a word in the title of a section counts most.
export const searchOptions = { fuzzy: 0.2, prefix: true, boost: { title: 4, text: 2, titles: 1 } }
