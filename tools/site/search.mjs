// The search box uses these options, and so does the test of the search.

// indexOptions are the fields of VitePress's index.
export const indexOptions = { fields: ['title', 'titles', 'text'], storeFields: ['title', 'titles'] }

// searchOptions rank results: a word in the title of a section counts most. Words that are on
// every page are not searched. The pages that compare, measure or test numaform contain most
// words of the other pages, and count half. VitePress copies the functions to the page as
// text, so they use nothing outside of themselves.
export const searchOptions = {
  fuzzy: 0.2,
  prefix: true,
  boost: { title: 4, text: 2, titles: 1 },
  processTerm: (term) => /^(a|an|and|are|be|by|can|do|does|for|from|has|have|how|i|if|in|is|it|its|my|of|on|or|the|to|what|when|which|who|why|with|you)$/i.test(term) ? null : term.toLowerCase(),
  boostDocument: (id) => /^\/(parity|migration-|test-coverage|placement|performance|releasing|conformance)/.test(id) ? 0.5 : 1,
}
